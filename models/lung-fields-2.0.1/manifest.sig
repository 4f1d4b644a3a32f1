{"key": "34kRJHdQujYW+UxEk9/JkMj64Iianey/tiJACk0SXUE=", "signature": "XzHDYeL5hJrWR7EVRAbxr5f1rjWkg1fMCkEqiiNrqxDUZ0+V1W+9l5bNq8Iz4kAjoq2tKENGiNaWTB1xTiLhCA=="}

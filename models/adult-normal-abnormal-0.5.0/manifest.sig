{"key": "34kRJHdQujYW+UxEk9/JkMj64Iianey/tiJACk0SXUE=", "signature": "/ndO+X7rrcc71Idm0xVA6bz2gYdqHEYSjNz0uj14WczSShT3UL0438x7PHCmHLoefDIwRL3xOQ5iBDf4Xe+jAA=="}

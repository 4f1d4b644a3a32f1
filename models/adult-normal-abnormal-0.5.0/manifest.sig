{"key": "34kRJHdQujYW+UxEk9/JkMj64Iianey/tiJACk0SXUE=", "signature": "URbwsZFLjMi2YY/gKI0SgKdXNtQnc4e1zfpoT7bIgeLa3RaGbbo2tFsBHDmqnSUYCwWON4CA+JR8Lf5dOFx1Ag=="}

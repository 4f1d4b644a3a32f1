{"key": "34kRJHdQujYW+UxEk9/JkMj64Iianey/tiJACk0SXUE=", "signature": "H7UWnWZOPTN8/qkatjlbI90ZwOSRxYd40bCLm2iu9miLgchsXEXYgcRCVyag5u5C3zbRmhaOLvryVIkmx1ImDQ=="}

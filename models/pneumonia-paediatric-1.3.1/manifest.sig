{"key": "34kRJHdQujYW+UxEk9/JkMj64Iianey/tiJACk0SXUE=", "signature": "HI3kOCD3XrZlJsmbuaI65wsIVabuCGMLu1JllKFJqqsX31peDmEkbdOG5kFJRgN/eGdfjU6rFGFfdOwUUDBnBQ=="}

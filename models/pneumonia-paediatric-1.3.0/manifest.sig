{"key": "34kRJHdQujYW+UxEk9/JkMj64Iianey/tiJACk0SXUE=", "signature": "JJAaoqL6RgTV/8V8CQPX40QQUwqCGyrFF91KGIeEbwIYM3/qsfc4N/b1nEUfdqvRrdn8qi+sseXdf2aCyDmcAA=="}

{"key": "34kRJHdQujYW+UxEk9/JkMj64Iianey/tiJACk0SXUE=", "signature": "IrPibeOE88zMQyPFDezGPUH5i1rVC2DJX4uPrTdW9vB2nL1rrKTi+WlSuIYKEeZZyWMu0E+mx7ASdMe5kKXLAg=="}

{"key": "34kRJHdQujYW+UxEk9/JkMj64Iianey/tiJACk0SXUE=", "signature": "TR8SaO1iWbvR0R9BBjQXT+BEH9F6KSPe1HxJy8oCKIfBiGZSd7rqzkOBUyqCVXRdJuxeWJkAE2SOrfeyNwzhBA=="}

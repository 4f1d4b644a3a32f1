{"key": "34kRJHdQujYW+UxEk9/JkMj64Iianey/tiJACk0SXUE=", "signature": "YZvyC/DDBgKGzhbQrsI3URfE8OfompVJLV94ctf5KlfPOPrpugUNwnD/dTWkIV7Mo3wBQbC/aCRjR67V3Zq0BA=="}

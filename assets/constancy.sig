{"key": "34kRJHdQujYW+UxEk9/JkMj64Iianey/tiJACk0SXUE=", "signature": "I8FBHrnM+5Ax5KiBS+YIuX9G4qrBMH4/rNSqcotULE1zDmUcZtGgZofpKzCfr9yRKYWqfGDebyOO3XMUCrb6Cw=="}

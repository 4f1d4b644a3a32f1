{"key": "34kRJHdQujYW+UxEk9/JkMj64Iianey/tiJACk0SXUE=", "signature": "lm7le8EhCSnn9xWUOY4eG+DogKxcGxbQmPE/3kKt+NHKvNgI5uC2U6Ac/rCK3WiR2s5p+GVI8eShiNDqAM9KDw=="}

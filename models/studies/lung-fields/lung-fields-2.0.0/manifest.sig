{"key": "34kRJHdQujYW+UxEk9/JkMj64Iianey/tiJACk0SXUE=", "signature": "4N5izD8E/unMyhgK4siKcS1nz/Z7xGXowIepzoFBSswzJKQEkn4Lt6vzqN5YSQu+3QHlbGTNGSX6biNVl0GPDw=="}

{"key": "34kRJHdQujYW+UxEk9/JkMj64Iianey/tiJACk0SXUE=", "signature": "nQPgWOJZIV026zqWu3fvcgBtE6JCM3hF8n07QDK4kQ+KAPxqjFHs17SXueKtrRyPoZV/Hlnq7fZAtUAJr9yEBQ=="}

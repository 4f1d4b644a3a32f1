{"key": "34kRJHdQujYW+UxEk9/JkMj64Iianey/tiJACk0SXUE=", "signature": "GwHleVtXJcxBn7eCcW3k1hxci9pEgYe2TKY3Igqxs2lOjtokl8nB1N8Srp3SpkXyQB+H9oIS+fW4GrMQESWGCA=="}

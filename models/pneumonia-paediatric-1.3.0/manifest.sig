{"key": "34kRJHdQujYW+UxEk9/JkMj64Iianey/tiJACk0SXUE=", "signature": "fGXCZAydPEklXu/IidnJcbViPGITgPbJeHwKUjeYo8nzu2K0TQxNWF8BolrAsUqFLzJGuw/9aup4Q7QY443RBA=="}

{"key": "Hk22xa7ULCp24lNnOykHvpUbDclQfokWuQlVV8tw2ro=", "signature": "GeHDx/IDujGVw4Bh8KhzDRcmsEpWwpMuG6lf4NmjbvApZZwC108Vi9auy84FaocJbH1AsPPLToTvpG2bvGHYBQ=="}

{"key": "AKAOs/Kw06A8oFat9wsChAXOOim+fSJUUVbb2M0GX2Q=", "signature": "Y6kO8a/aFs0FdJkqKa+ENZGNWmzYuUu6kXfbLp2jGuHuZJYD7KxmIYDYuWvImxKMGqzGHraEc71PDNVmxM6xDg=="}

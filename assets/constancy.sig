{"key": "IOzpF+YQmH92l5AZ2t3GDVEjvnU+pvqAKOzjfrEqXyc=", "signature": "AYrTmXQJJV70Eg2ukp6gUrpx0fc1AIdny5qHwHlJICg3e1zXWYv2xKpxYuaKybGHZs3Pro9TTSldKFqU9o+/Cg=="}

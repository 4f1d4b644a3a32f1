{"key": "IOzpF+YQmH92l5AZ2t3GDVEjvnU+pvqAKOzjfrEqXyc=", "signature": "/FLO25Au4Z8c33VbBybWRz27FKVQz2+g+/L0jUmny/ajEblm1P60snpAx7x/1NLQ+mGiAh7sVNCyymKNlyHmDg=="}

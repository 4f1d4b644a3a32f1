{"key": "o28iMYqrpSVxJwLX0wPlzT5CfiRzsvex8nWuNKvtRgQ=", "signature": "HAaxfdZRNL7Dbp1psqMoPkUEQr4J4cQQboedv5iJfuavpsmXAS1m8g+CxJr8gpYAsErkJd6nsx7cK0v1LdjNAQ=="}

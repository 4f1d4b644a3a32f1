{"key": "o28iMYqrpSVxJwLX0wPlzT5CfiRzsvex8nWuNKvtRgQ=", "signature": "Cq3rQHazeBFNd7o9whmgZQW9Q2KybHZZQ0goj1zcmkiaE2JKrHZmvUZglwnsNJxemA7QFC2P40a5mbf6eA+jBQ=="}

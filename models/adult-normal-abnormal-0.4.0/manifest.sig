{"key": "o28iMYqrpSVxJwLX0wPlzT5CfiRzsvex8nWuNKvtRgQ=", "signature": "8zTA494BjFEUsP7w2bIF8OtQ8XMKL2s/SWVxTdbggh0pa3bYNTXsSal3HETBrtaDyW8mnEEIYMtejFtVjxSGAQ=="}

{"key": "o28iMYqrpSVxJwLX0wPlzT5CfiRzsvex8nWuNKvtRgQ=", "signature": "H5JLEL7tkOlxjbnAIrOXxmGyQEmXISaZmHQtUhcturX7pJPKmyo+NK7M4thL4rlyuYfH50QGERP/j+i4zTxGDg=="}

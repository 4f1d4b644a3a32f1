{"key": "o28iMYqrpSVxJwLX0wPlzT5CfiRzsvex8nWuNKvtRgQ=", "signature": "ME/qJKYSdbcGbi5JXd9Y7FAtPAFw4KOvmk6WEnJmkevKmOQKjpkV0hyJAJ/IHWKyS2dyi6c+AHhF0OPcSc1IDg=="}

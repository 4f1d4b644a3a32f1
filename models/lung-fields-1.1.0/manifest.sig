{"key": "o28iMYqrpSVxJwLX0wPlzT5CfiRzsvex8nWuNKvtRgQ=", "signature": "iK/w4l6CWCYFeHTAFMhjlf+2UzM+9aTz5UQeeNgImRIStNztGUX75fb2dhGTAcG6NQqWti4qKncn+CDJcRzyDg=="}

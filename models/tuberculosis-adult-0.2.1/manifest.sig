{"key": "o28iMYqrpSVxJwLX0wPlzT5CfiRzsvex8nWuNKvtRgQ=", "signature": "Ca62PNde8aWqGseCUwVZWlREFW7azsO8I0C7HKDS95pavcJwG9x6NkB8jR9dxsaKwi062j6tNt8mGErgtty9Cw=="}

{"key": "0wVFujHEzdu+0JwSgJv+A5rExuhB9Wo2yeGfp+mMfzk=", "signature": "IZoesEEaREsLUbY8En6qdN7rHUuBs8p1U3pJrlG1iQjuTE3IFJCthy4rq7zUr87H/ARhuTwgSFxyAwGDv3y8Cg=="}

{"key": "kYMMyKV/S6+FBF7BQQ9/kJXr4qgJ/Gl17pXcysnD6OY=", "signature": "JNg9rC8Gwu6LaM2aGH0V0mppIexvvUA72dipebzHSs+s2QwW0Mmv190SwWo1aRdDz8n5GdA0gce5yiiJb+t+BQ=="}

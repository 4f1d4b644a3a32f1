{"key": "Hk22xa7ULCp24lNnOykHvpUbDclQfokWuQlVV8tw2ro=", "signature": "EZ6W7krIuBO0GK/3t6yWYZAzDF8BvIORBEPM/Nr+4Y1V0Jzzw0wroNpVCqZJt7Nr3Qyuc5rVnVOQlL+HyujaDQ=="}

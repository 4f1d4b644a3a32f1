{"key": "IOzpF+YQmH92l5AZ2t3GDVEjvnU+pvqAKOzjfrEqXyc=", "signature": "huUdKSa1n27bxu5ZVwnvMbcweoe8RNqA8rUcFWLuYs2JDgez1DidotIwISSY3VRZk6LDUpLvgkrHazsGAQ/GAQ=="}

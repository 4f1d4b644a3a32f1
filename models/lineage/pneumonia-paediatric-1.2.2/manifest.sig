{"key": "nZ9e3Kr+PHwvqyqQbrvLpfePhkdXLkOvz+HTc9Ise6w=", "signature": "9pNmsfOyqPEqe7LtnuYhtalKaojbtPN5dGLK7blS1Iozmobov//4dOTA9sC61RIR/2AexB9NCKoV9RdrpUCbDQ=="}

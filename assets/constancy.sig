{"key": "IOzpF+YQmH92l5AZ2t3GDVEjvnU+pvqAKOzjfrEqXyc=", "signature": "Ib3EvvGBNrcIC4E2GagICcZdC8ltwZHPoZQbHEfJyiAXT1rVX5+UYMObM4JeDPzAl/pc9I5bxOFH67kQ043SBw=="}

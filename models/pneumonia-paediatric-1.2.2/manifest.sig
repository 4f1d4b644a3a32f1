{"key": "9ctajOT3VfGlt4u9YlkoBNr7hUQBF/J5D8m2lzKPWxk=", "signature": "k/Pp2e+2pdW6Ii4mxxj4xNaRYnrwBocSd0byYDeZL4t+BjgjSeYO1GuBxFTypHmb12q7m2a3DfJU4thtlvvBDg=="}

{"key": "ht21ZupLfYegNk05FURVIT0toqMn+TVpkAvd934STso=", "signature": "jtVExUl2nK6TFJyXWFBOkBtTHY1lmMl07RsqlwbsxIW/TkBoLEJFc5jRI3j/p3LBoJY6WP60Ift47BDWMEaYCQ=="}

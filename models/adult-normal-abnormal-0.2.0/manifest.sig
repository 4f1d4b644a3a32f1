{"key": "YdLyO+hxQpor463CrdqI57WXQiOAzYnBpY4lRu/87ts=", "signature": "PSSS1RjxfBzazJnoukS2BaVDXw05B5tDLFRMV2Twp/8aCvR2UTTum1uC5Lo2BRNObFsXrVovb5fkYmuhf39uCw=="}

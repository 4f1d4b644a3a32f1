{"key": "wvKOJoog8FPiybgCk3IPCz2raOHC/e583fHCfvzDqg4=", "signature": "IeNYXae4HwDwsbUL4j49W7X37IbO/Z5gM42OCLm8P6IGhJCKXsxQjXKzkSAD36tnnQvX6noV2+sPMfCist7ECg=="}

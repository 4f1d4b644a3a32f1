{"key": "AKAOs/Kw06A8oFat9wsChAXOOim+fSJUUVbb2M0GX2Q=", "signature": "AhdXYCBvWBtxmvpjZd/DW2YxaInVgT9VcET/HnXb+iKNwhYh3jVQae3b0pNVSMaRfchiA0J+G0xADNPlHEpsCQ=="}

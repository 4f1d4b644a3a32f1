{"key": "UatL9JAq8X6Zo88ajyEEWfPlapC+mqb5S8IPSPEn4bo=", "signature": "STY46oHHrri3/b9EWKRoi8OO4lWBmOMrBRySZSwWhjiRzsAdoNzXFJwBB5Zc3+fyYoMMch0R73tsOYHnaXlHAw=="}

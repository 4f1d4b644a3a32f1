{"key": "LRC4Q22Xa5jTRQ4vT6NePVwTHsWO3NwIavkgqmLdu+A=", "signature": "rKawypXFdO0cfcUuxO+CE0BZp+i5RlnimKlVnUBtcCY52qv6K4vTKvH8X2qH+1mbnDp1tzja7jLdJUN+nYx8CA=="}

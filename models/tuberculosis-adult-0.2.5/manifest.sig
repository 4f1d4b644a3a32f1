{"key": "+s+45J/sNbci2ufwaC4iy89l9roXsVCvUnPuNIxrSN4=", "signature": "4SRDVawqHjn5YsXIPyiCZhWDLftqRKK9kBYiYKCMv71WyEgbVOZ4CDZF8tE9xcdTjVGnC+TpSGrxz1RkHds7Cw=="}

{"key": "Kk4mVyvZw/eSj4TbXoHwwFmKP7/LKotZiSHo4wxSCzU=", "signature": "LlD48t8ZRTC6Opywx1Ps6NLFwZdHSubw8/DvCWk0KWgXxMjuqJ6KJyQ5Yp2n33WozMu0TabacSpHYW/y4hDrDw=="}

{"key": "L66hfwgLPqnLf/U0+44BIAmv4/P6/LyScGUudtYFOwk=", "signature": "XqskrPWSp0Z8pkzoIJ9vPI7Kdp3mwaFsRJf2Ktyg2w/VtGP6am+sTggPodbn2FN+4QSy21QRT3BJriQsglUJBg=="}

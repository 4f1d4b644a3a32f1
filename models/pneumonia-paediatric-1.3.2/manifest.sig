{"key": "nms7X7R5+Ic09OcMitxK7QiQ6DTqED0JLBqtCFYPJnk=", "signature": "pYVncsv+g3Biykxac0Fb2Kef2hIjEq0VeGCXIZH8nq3WNURpZMuYetRG+4+7xmkNDi7Ujl2PcsM9PDRPK1qRBg=="}

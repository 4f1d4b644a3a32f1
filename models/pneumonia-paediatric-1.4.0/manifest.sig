{"key": "yihyrbKtwLfhjsciUQAAL9M9CzkklP8hgJkh/dMgSao=", "signature": "50XZFKXqOVrTxR7ptxfvX/Yclvz8scJuQai94y+Xj873vSrzHn+I+o10+vyj0Bk661m/M+iukucQd/9FNrteCQ=="}

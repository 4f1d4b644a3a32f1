{"key": "yihyrbKtwLfhjsciUQAAL9M9CzkklP8hgJkh/dMgSao=", "signature": "az9Ce+hHhPl60QH+YRpoaz3Nyn4G4rWs0utWUgS8kNfC4HuPBwShQWuF1WmRt76Hy7SDoIhJVhP9E+W2MIsnCQ=="}

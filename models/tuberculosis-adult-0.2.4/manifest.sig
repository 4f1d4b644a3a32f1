{"key": "34kRJHdQujYW+UxEk9/JkMj64Iianey/tiJACk0SXUE=", "signature": "yjVD4TD0xS9NF2J3MTMX0swrGG/RDbEsSANXjvxc/xwOlpjpfEevjZ9xd3AaM4+UVRs/hkPSa+s0kC3BOlPjAQ=="}

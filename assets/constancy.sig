{"key": "uD4LDK70UBHOs7CwVqzu1lhKqjympgCnzNifkGoLf9s=", "signature": "YW6hT+ik3OSVfhKlsh+DOHJsOTn2iNFzxL7wbQYTGuLwdWYbCm0gec9lb8q5D/IV7OyAPtR5u0lG0vhjfd7tDw=="}

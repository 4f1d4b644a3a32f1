{"key": "B7G6oxnjjulMqfDNPgoRXIUxoIEpqBxWsfknZ6HwCgE=", "signature": "X3OouLF3qqtGyTIxJRr80U5kozPkP6pF8N4mCdH7ZTn9RQkhxNi1FowUDqd8pmqIrs/ah+6h66Rf90fTOy/sDg=="}

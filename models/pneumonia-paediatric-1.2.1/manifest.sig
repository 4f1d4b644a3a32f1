{"key": "o28iMYqrpSVxJwLX0wPlzT5CfiRzsvex8nWuNKvtRgQ=", "signature": "fWLJ5hO2W9M6wtOA62IsnPLEHJ+lMH3kqGsn8PdtYtDb6wb5DitR4p+g9tpj8dkU8w++T1H/bN+YQAnIj6wWAA=="}

{"key": "ljk17XTX/AayNsxmndzf5zuTDy2u9LSbdUAAP/aL6/Q=", "signature": "weVCzXVV0YHi2ZTxJ2l4CbNczoikSsdBWPqkyxpqC21YoUFoq7FJ9aczO/PvI0TRV10alcC5Yag26ObF5GDwCA=="}

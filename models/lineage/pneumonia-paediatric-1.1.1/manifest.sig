{"key": "csXEqfqoAwQizW9q8ykv/IGQN+GVCGBUxSJ2k8SKr2o=", "signature": "04M7+cTw92zI7jsHBXzKVDMdVs7mm6m0NRKwccQCn8If5S/JnWIUQ5+9KUmQ8q40NMowvrnq0eDwnh2Cjg8EBA=="}

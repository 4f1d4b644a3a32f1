{"key": "csXEqfqoAwQizW9q8ykv/IGQN+GVCGBUxSJ2k8SKr2o=", "signature": "8RdGwjwniGzK4fKSydC/RpoXnVa9F53f7u2W0vHfqsGDHB/YpOnOGFUcNOKCVbTE+TtmEwKnSVh5cQa1Y5qBDw=="}

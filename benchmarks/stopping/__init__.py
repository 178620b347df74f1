"""When training ends: neither early nor late?"""
